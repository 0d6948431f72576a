"""RULER (Hsieh et al. 2024, arXiv 2404.06654), made and scored by NVIDIA's ``nvidia-long-context-eval``."""
