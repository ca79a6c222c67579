"""The weights, and what their tokens say."""

import json
import math
import struct
from pathlib import Path

from doorbell_lifecycle import vocabulary as words
from doorbell_lifecycle import weights


def test_every_token_is_read_as_it_was_made() -> None:
    made = {}
    for version in range(words.VERSIONS):
        for keys in range(words.VERSIONS):
            for count in range(words.COUNTS):
                for draw in range(words.DRAWS):
                    token = words.Token(version, keys, count, draw)
                    made[words.token(version, keys, count, draw)] = token
    assert len(made) == words.SIZE - words.FIRST
    assert all(words.read(number) == token for number, token in made.items())
    assert len({words.text(number) for number in range(words.SIZE)}) == words.SIZE
    assert words.read(words.END) is None


def test_odds_are_a_distribution() -> None:
    for temperature in (0.5, 1.0, 2.0):
        assert math.isclose(sum(map(math.exp, words.odds(temperature))), 1.0)


def test_a_directory_is_a_model_of_llamas_shape(tmp_path: Path) -> None:
    first, second = weights.write_all(tmp_path, 2)
    data = (first / "model.safetensors").read_bytes()
    assert data != (second / "model.safetensors").read_bytes()
    assert data == (weights.write(tmp_path / "again", 0) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    config = json.loads((first / "config.json").read_text())
    assert header["model.embed_tokens.weight"]["shape"] == [config["vocab_size"], config["hidden_size"]]
    assert max(tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__") == len(data) - 8 - length
