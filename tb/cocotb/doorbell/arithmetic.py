"""What the contract computes: the check word (rule R2), engine 0 and reward model 0."""

from collections.abc import Iterable
from struct import unpack

from . import contract as c

U32 = 0xFFFF_FFFF
U64 = 0xFFFF_FFFF_FFFF_FFFF


def words(data: bytes | bytearray) -> tuple[int, ...]:
    """Bytes as words of 32 bits."""
    return unpack(f"<{len(data) // 4}I", data)


def mix(x: int) -> int:
    """The finaliser of all hashes."""
    x ^= x >> 16
    x = x * c.MIX_MUL_1 & U32
    x ^= x >> 15
    x = x * c.MIX_MUL_2 & U32
    return x ^ x >> 16


def rotl(x: int, by: int) -> int:
    """32 bits, turned to the left."""
    return (x << by | x >> 32 - by) & U32


def check_word(slot: bytes, index: int, key: int) -> int:
    """The check word of this slot at this running index of a queue with this key; what stands there is not read."""
    fields = [*words(slot[:60]), 0]
    keys = [rotl(key, 2 * k + 1) ^ mix((k + 1) * c.GOLDEN & U32) for k in range(16)]
    keyed = [field + word & U32 for field, word in zip(fields, keys, strict=True)]
    total = (sum(a * b for a, b in zip(keyed[::2], keyed[1::2], strict=True)) + index * c.GOLDEN_64) & U64
    return (total >> 32) ^ (total & U32) or U32


def draw(desc: c.HwDesc, position: int, eos_threshold: int, salt: int = 0) -> tuple[int, bool]:
    """The token of engine 0 at this position, and whether it is an end of sequence."""
    base = mix((desc.seed ^ mix((desc.rollout_id + c.GOLDEN) & U32)) + salt & U32)
    h = mix((base + position * c.GOLDEN) & U32)
    return h & (1 << c.VOCAB_BITS) - 1, h >> c.VOCAB_BITS < eos_threshold


def digest(tokens: Iterable[int]) -> int:
    """The digest of these tokens, in order."""
    value = c.DIGEST_INIT
    for token in tokens:
        value = (value ^ token) * c.DIGEST_PRIME & U32
    return value


def score(of: int) -> int:
    """The score that reward model 0 gives to a digest."""
    return (of >> 16) ^ (of & 0xFFFF)
