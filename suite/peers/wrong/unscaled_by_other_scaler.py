"""Both losses have a scaler; the second one's gradients are divided by the first one's scale."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import TwoLosses  # noqa: E402


class Wrong(TwoLosses):
    def unscale_of(self, loss):
        super().unscale_of(loss)
        for part in self.reached(loss):
            for parameter in part.values():
                parameter.grad.mul_(self.scale_of(loss) / self.scale_of(0))


main(Wrong)
