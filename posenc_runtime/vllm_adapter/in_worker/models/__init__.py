"""The models that Posenc adds to vLLM, as workers run them."""
