"""The oracle of docs/engine.md, by the C interface: which log-probability a token has under given weights, to the last bit."""

import ctypes

ONE = 1 << 16  # log-probabilities have 16 fraction bits


class Span(ctypes.Structure):
    _fields_ = [("weights", ctypes.c_void_p), ("end", ctypes.c_size_t)]


class Oracle:
    """Weights by name, from image files or directories of safetensors."""

    def __init__(self, library):
        self.library = library = ctypes.CDLL(str(library))
        library.doorbell_error_text.restype = ctypes.c_char_p
        library.doorbell_weights_open.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
        library.doorbell_weights_close.argtypes = [ctypes.c_void_p]
        words = ctypes.POINTER(ctypes.c_uint32), ctypes.c_size_t, ctypes.POINTER(ctypes.c_int32)
        library.doorbell_score.argtypes = [ctypes.POINTER(Span), ctypes.c_size_t, ctypes.c_double, *words]
        self.weights = {}

    def open(self, name, path):
        handle = ctypes.c_void_p()
        self.check(self.library.doorbell_weights_open(str(path).encode(), ctypes.byref(handle)))
        self.weights[name] = handle

    def close(self, name):
        self.check(self.library.doorbell_weights_close(self.weights.pop(name)))

    def score(self, spans, tokens, first):
        """Log-probabilities at temperature 1 of the tokens from place `first` on, as whole numbers of 2^-16. `spans` are pairs of a name of weights and the place
        behind the last token that they made."""
        held = (Span * len(spans))(*(Span(self.weights[name], end) for name, end in spans))
        out = (ctypes.c_int32 * len(tokens))()
        self.check(self.library.doorbell_score(held, len(spans), 1.0, (ctypes.c_uint32 * len(tokens))(*tokens), len(tokens), out))
        return list(out[first:])

    def check(self, result):
        if result != 0:
            raise RuntimeError(self.library.doorbell_error_text().decode())
