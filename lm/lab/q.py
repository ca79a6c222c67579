import numpy as np, pickle, sys, time, re
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, AddedToken
tok,mer,tt=pickle.load(open('tok.pkl','rb'))
T_=Tokenizer(models.BPE(vocab={t:i for i,t in enumerate(tok)},merges=[tuple(m.split(' ')) for m in mer]))
T_.pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),pre_tokenizers.ByteLevel(add_prefix_space=False)])
T_.decoder=decoders.ByteLevel()
T_.add_special_tokens([AddedToken(t,special=True) for t,k in zip(tok,tt) if k==3])
W=np.load('w.npz')
L=30;d=576;H=9;KH=3;hd=64;F=1536;V=49152
def text_ids(n):
    t=open('/usr/share/common-licenses/GPL-3').read()
    t2=re.sub(r'[|`#*]','',open('/work/main/docs/architecture.md').read())
    a=T_.encode(t[2000:]).ids[:n//2]; b=T_.encode(t2[2000:]).ids[:n-n//2]
    return a,b
def rope_f(x):  # interleaved pairs (GGUF llama permuted): x (T,h,64)
    T=x.shape[0]; i=np.arange(hd//2); fr=100000.0**(-2*i/hd); ang=np.arange(T)[:,None]*fr
    c,s=np.cos(ang)[:,None],np.sin(ang)[:,None]; o=np.empty_like(x); o[...,0::2]=x[...,0::2]*c-x[...,1::2]*s; o[...,1::2]=x[...,0::2]*s+x[...,1::2]*c; return o
def fwd_float(ids,dt=np.float64):
    x=W['token_embd.weight'][ids].astype(dt); T=len(ids)
    nrm=lambda x,g:x/np.sqrt((x*x).mean(-1,keepdims=True)+1e-5)*g
    mask=np.triu(np.full((T,T),-np.inf),1)
    st={}
    for l in range(L):
        w=lambda n:W[f'blk.{l}.{n}.weight'].astype(dt)
        h=nrm(x,w('attn_norm')); q=rope_f((h@w('attn_q').T).reshape(T,H,hd)); k=rope_f((h@w('attn_k').T).reshape(T,KH,hd)); v=(h@w('attn_v').T).reshape(T,KH,hd)
        o=np.empty((T,H,hd),dt)
        for a in range(H):
            s=q[:,a]@k[:,a//3].T/8+mask; s-=s.max(-1,keepdims=True); p=np.exp(s); p/=p.sum(-1,keepdims=True); o[:,a]=p@v[:,a//3]
        x=x+o.reshape(T,d)@w('attn_output').T
        h=nrm(x,w('ffn_norm')); g=h@w('ffn_gate').T; u=h@w('ffn_up').T
        x=x+(g/(1+np.exp(-g))*u)@w('ffn_down').T
        st[l]=(np.abs(q).max(),np.abs(k).max(),np.abs(v).max(),np.abs(g).max(),np.abs(u).max(),np.abs(x).max())
    return nrm(x,W['output_norm.weight'].astype(dt))@W['token_embd.weight'].astype(dt).T, st
if __name__=='__main__':
    n=int(sys.argv[1]) if len(sys.argv)>1 else 512
    for ids in text_ids(n):
        t=time.time(); lg,st=fwd_float(ids,np.float32); print(time.time()-t)
        lp=lg-lg.max(-1,keepdims=True); lp-=np.log(np.exp(lp).sum(-1,keepdims=True)); nll=-lp[np.arange(len(ids)-1),ids[1:]]; print('ppl',np.exp(nll.mean()),'x max',max(s[5] for s in st.values()),'q',max(s[0] for s in st.values()),'k',max(s[1] for s in st.values()),'v',max(s[2] for s in st.values()),'g',max(s[3] for s in st.values()),'u',max(s[4] for s in st.values()))
    print(T_.decode([int(lg[-1].argmax())]))
