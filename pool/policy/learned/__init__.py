"""How devices are split between serving, warm-up and fine-tuning, learnt from what earlier splits brought."""
