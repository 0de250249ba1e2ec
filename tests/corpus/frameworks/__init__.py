"""The suite of pairs of two frameworks: small networks recorded by torch, aten, ONNX Runtime, TensorFlow and JAX.

The suite needs an environment with torch, onnx, onnxruntime, onnxscript, tensorflow-cpu, jax and the dependencies of
npucmp:

    python -m tests.corpus.frameworks SEED… [--suite open|held] [--networks bert,vit] [--pairs ort/msprobe] [--clean]
        [--faults N] [--keep FOLDER] [--records FILE]

`--keep` stores dumps and their truth, so that a later command only compares. See score.py for the printed figures.
"""

OPEN_NETWORKS = ("resnet", "mobilenet", "bert", "llama", "moe", "lstm", "unet", "vit", "convnext", "gpt2")
HELD_NETWORKS = ("efficientnet", "t5", "mixer", "gru", "whisper")
