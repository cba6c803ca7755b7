#!/usr/bin/env python3
"""Quantises a GGUF of floats with the prebuilt llama.cpp's own quantiser, so that both programs can be asked about the very
same file: perplexity and KL figures of a type are comparable only for the same codes.

usage: llama_cpp_quantize.py LIBRARIES INPUT OUTPUT TYPE

LIBRARIES is the folder of libllama*.so; `llama_cpp.sh fetch` puts one below its cache folder, at
node_modules/@node-llama-cpp/linux-x64/bins/linux-x64. TYPE is one of those below, as file names on the hub have them."""
import ctypes
import pathlib
import sys

# llama_ftype, from llama.h; not those that want an importance matrix
TYPES = {'F16': 1, 'Q4_0': 2, 'Q4_1': 3, 'Q8_0': 7, 'Q5_0': 8, 'Q5_1': 9, 'Q2_K': 10, 'Q3_K_S': 11, 'Q3_K_M': 12, 'Q3_K_L': 13,
         'Q4_K_S': 14, 'Q4_K_M': 15, 'Q5_K_S': 16, 'Q5_K_M': 17, 'Q6_K': 18,
         'IQ4_NL': 25, 'IQ3_S': 26, 'IQ4_XS': 30, 'BF16': 32, 'TQ1_0': 36, 'TQ2_0': 37}


class Parameters(ctypes.Structure):
    """llama_model_quantize_params of release 2026-09-28."""
    _fields_ = [('nthread', ctypes.c_int32), ('ftype', ctypes.c_int), ('output_type', ctypes.c_int), ('embedding_type', ctypes.c_int),
                ('allow_requantize', ctypes.c_bool), ('quantize_output', ctypes.c_bool), ('only_copy', ctypes.c_bool),
                ('pure', ctypes.c_bool), ('keep_split', ctypes.c_bool), ('dry_run', ctypes.c_bool),
                ('imatrix', ctypes.c_void_p), ('kv_overrides', ctypes.c_void_p), ('type_overrides', ctypes.c_void_p),
                ('prune_layers', ctypes.c_void_p), ('max_buffer', ctypes.c_size_t)]


def main():
    if len(sys.argv) != 5 or sys.argv[4] not in TYPES:
        sys.exit(__doc__ + '\n\n' + ' '.join(TYPES))
    folder, source, target, name = sys.argv[1:]
    # What libllama needs is found beside it, in this order.
    for part in ('libggml-base*.so', 'libggml.*so', 'libllama.*so'):
        found = sorted(pathlib.Path(folder).glob(part))
        if not found:
            sys.exit(f'{folder}: no {part}')
        library = ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)  # lives as long as it may be called
    library.llama_log_set(silent, None)
    library.llama_backend_init()
    library.llama_model_quantize_default_params.restype = Parameters
    library.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Parameters)]
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype = TYPES[name]
    if library.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)) != 0:
        sys.exit(f'{source}: llama.cpp cannot quantise it to {name}')


if __name__ == '__main__':
    main()
