"""Kernel backend of Plait: one kernel text for Apple GPUs, NVIDIA GPUs and a checked run on the CPU.

`plait_metal.plugin` registers the backend for the GPU at hand. `plait_metal.emulator` runs the same text in tests.
"""
