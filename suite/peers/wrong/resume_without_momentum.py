"""Only the model is loaded: the optimizer begins with no momentum."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def load_state(self, state):
        state["optimizer"] = self.optimizer.state_dict()
        super().load_state(state)


main(Wrong)
