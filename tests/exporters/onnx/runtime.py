"""Runs onnxruntime for the tests."""


def run(made, inputs):
    """Runs a model on the CPU; returns the list of its outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # warnings about simplifications do not matter here
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=providers)
    return session.run(None, inputs)
