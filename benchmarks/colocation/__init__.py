"""Inference beside training on one emulated device: what training costs requests, and what it gets done.

Everything is real but the device, which is one core: the champion's whole funnel behind HTTP, its coalescer and its
lanes; the fine-tune work, and two synthetic ones that are bound by arithmetic and by memory. The load generator has
another core. `server` is the serving process, `trainers` the training one, `arms` how they share the device,
`cells` measures one arm at one load, `figures` says what came of all.
"""
