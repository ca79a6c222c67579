import pandas as pd

step = pd.read_parquet("step.parquet").sort_values(["request", "member"])
print(step[["request", "member", "score", "group_mean", "advantage", "outcome"]].head(8).to_string(index=False))
step["answer_tokens"] = step["tokens"].map(len)
print(step.groupby("prompt_text", sort=False)[["score", "answer_tokens"]].mean())
