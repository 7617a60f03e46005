# CKPT102 unsafe | dist.barrier() | `not self.first`
# prelude: collectives

class FirstRank:
    def __enter__(self):
        self.first = int(os.environ["LOCAL_RANK"]) == 0
        if not self.first:
            dist.barrier()

    def __exit__(self, *error):
        if not self.first:
            print("the first rank is done")
