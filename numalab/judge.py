"""stub until the judge branch is merged"""
def verdict(runs, *, force=False): raise NotImplementedError
