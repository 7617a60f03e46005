"""RecurrentGemma: its modules hold the recurrent state, and only a forward that makes a cache resets it.

Without a cache, a step goes on with the state of the one before: on 4.57.6 the second backward raises "Trying to
backward through the graph a second time", and on 5.3.0 the forward raises "The size of tensor a (32) must match the
size of tensor b (64)". 5.23.0 gives the same with and without.
"""

CACHE_DECIDES = {"RecurrentGemmaModel": "5.23.0"}
