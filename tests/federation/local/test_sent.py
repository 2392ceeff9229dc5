"""What a method may ask to send: refused with a message where it is not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedvlm.core.errors import FedvlmError
from fedvlm.core.trees import Tree
from fedvlm.federation.aggregation.arrival import Rows, Upload
from fedvlm.federation.context import Context
from tests.federation.lora_toys import BIAS, FA, SITE, Lora, four

ZERO = torch.zeros(1, 1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ({"only": (r".*\.C",)}, r"only='\.\*\\\.C' matches no shared tensor; shared are "
                                r"image.lora"),
        ({"rows": {"text.ctx": Rows(ZERO)}}, "rows of 'text.ctx', which is not"),
        ({"only": (BIAS,), "ranks": {SITE: [1]}}, "no factor is uploaded; uploaded are image.bias"),
        ({"ranks": {"image.lora.9.q": [1]}}, "ranks of 'image.lora.9.q', of which no factor is"),
        ({"ranks": {SITE: [5]}}, r"ranks of 'image.lora.0.q' are \[5\]; its rank is 4"),
        ({"ranks": {SITE: [-1]}}, r"are \[-1\]; its rank is 4"),
        ({"ranks": {SITE: [1, 1]}}, r"have shape \[2\], not \[1\]"),
        ({"ranks": {SITE: [1]}, "rows": {FA: Rows(ZERO)}}, "both rows and ranks"),
        ({"rows": {FA: Rows(torch.zeros(1, 1))}}, r"is torch.float32 \[1, 1\], not int64 \[1, n\]"),
        ({"rows": {FA: Rows(ZERO, 2)}}, r"along axis 2, but its shape is \[4, 3\]"),
        ({"rows": {FA: ZERO}}, "are Tensor, not Rows"),
        ({"rows": {FA: Rows(torch.tensor([[0, 4]]))}}, "client 0 sends a row of .* 0 to 3, and -1"),
        ({"rows": {FA: Rows(torch.tensor([[-2]]))}}, "client 0 sends a row of .* that does not "
                                                     "exist"),
        ({"rows": {FA: Rows(torch.tensor([[2, -1, 2, -1]]))}}, "client 0 sends a row of .* twice"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(what: dict[str, Any], sentence: str) -> None:
    class Asks(Lora):
        def send(self, ctx: Context, w: Tree, received: Tree) -> Upload:
            return ctx.upload(w, **what)

    with pytest.raises(FedvlmError, match=sentence):
        four(Asks(), rounds=1, chunk=1, sizes=(1,)).run()
