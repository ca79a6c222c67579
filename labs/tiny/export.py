"""Writes a checkpoint as a directory of Hugging Face: model.safetensors (float32, the names of Gemma3nForCausalLM), config.json, tokenizer.json, and
a card that names the licence.

    python3 export.py --checkpoint tiny.pt --tokenizer tokenizer.json --out DIR
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from model import Shape


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--checkpoint", required=True)
    options.add_argument("--tokenizer", required=True)
    options.add_argument("--out", required=True, type=Path)
    options = options.parse_args()
    there = torch.load(options.checkpoint, map_location="cpu")
    options.out.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.float().contiguous() for name, value in there["model"].items()}
    save_file(tensors, options.out / "model.safetensors", metadata={"format": "pt"})
    (options.out / "config.json").write_text(json.dumps(Shape().config(0), indent=2) + "\n")
    (options.out / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 0, "temperature": 0.7, "do_sample": True}) + "\n")
    shutil.copy(options.tokenizer, options.out / "tokenizer.json")
    (options.out / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "clean_up_tokenization_spaces": False}) + "\n")
    (options.out / "README.md").write_text("---\nlicense: MIT\n---\nTells small stories; of Gemma 3N's shape. docs/tiny.md of Doorbell says how it was made.\n")
    print(f"{options.out}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values())} numbers, {there['done']} steps")


if __name__ == "__main__":
    main()
