"""An expert to which no token was routed gets 0 rows and returns 0 rows, like torch.nn.Linear."""

import torch

from hfkit import end
from layers import linear

layer = linear()
print(tuple(layer(torch.randn(3, 128).half()).shape))
right = True
for x in (torch.zeros(0, 128).half(), torch.zeros(2, 0, 128).half()):
    try:
        right = right and layer(x).shape == (*x.shape[:-1], 96)
    except Exception as error:  # pylint: disable=broad-except
        print(f"{tuple(x.shape)} {type(error).__name__}: {error}")
        right = False
end(right)
