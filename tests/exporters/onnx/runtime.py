"""onnxruntime, as the tests use it."""


def run(made, inputs):
    """Runs a model on the CPU; returns the list of its outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # ONNX Runtime would log each simplification.
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=providers)
    return session.run(None, inputs)
