class Checkpoints:
    def __init__(self, hub):
        self.hub = hub

    def install(self):
        pass

    def __getattr__(self, name):
        return lambda *a: None
