"""PyTorch's GPU: whether there is one, its memory, and where its random numbers begin."""
import gc
import importlib.util


def lacking():
    """Why nothing can be measured here; None where it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is missing: pip install torch"
    import torch
    return None if torch.cuda.is_available() else "PyTorch sees no GPU"


def memory_bytes():
    import torch
    return torch.cuda.get_device_properties(0).total_memory


def begin_problem(seed):
    """Gives back what the problem before held, and starts random numbers anew."""
    import torch
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(seed)
