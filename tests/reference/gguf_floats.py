"""Reads a GGUF v3 file whose tensors are all F32: its keys, and its tensors as arrays in double precision."""
import struct

import numpy as np

NUMBERS = {0: 'B', 1: 'b', 2: 'H', 3: 'h', 4: 'I', 5: 'i', 6: 'f', 7: '?', 10: 'Q', 11: 'q', 12: 'd'}
STRING, ARRAY, F32 = 8, 9, 0


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        size = struct.calcsize('<' + code)
        self.at += size
        return struct.unpack('<' + code, self.data[self.at - size:self.at])[0]

    def text(self):
        size = self.number('Q')
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            element, size = self.number('I'), self.number('Q')
            return [self.value(element) for _ in range(size)]
        return self.number(NUMBERS[kind])


def load(path):
    """Returns (keys, tensors); a tensor's last axis is the row, as in y = W @ x."""
    with open(path, 'rb') as file:
        data = file.read()
    r = Reader(data)
    assert data[:4] == b'GGUF'
    r.at = 4
    assert r.number('I') == 3
    n_tensors, n_keys = r.number('Q'), r.number('Q')
    keys = {}
    for _ in range(n_keys):
        name = r.text()
        keys[name] = r.value(r.number('I'))
    table = []
    for _ in range(n_tensors):
        name = r.text()
        dims = [r.number('Q') for _ in range(r.number('I'))]
        assert r.number('I') == F32, name
        table.append((name, dims, r.number('Q')))
    align = keys.get('general.alignment', 32)
    start = -(-r.at // align) * align
    tensors = {}
    for name, dims, offset in table:
        count = int(np.prod(dims))
        flat = np.frombuffer(data, '<f4', count, start + offset)
        tensors[name] = flat.astype(np.float64).reshape(dims[::-1])
    return keys, tensors
