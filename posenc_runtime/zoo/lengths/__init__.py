"""Small decoders, one for each position encoding, made to be asked for more than the length that they were trained on.

One decoder of an encoding is trained on text, another one on copying and addition. ``recipe.yaml`` is for all.
"""
