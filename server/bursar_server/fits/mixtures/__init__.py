"""Gaussian mixtures by noisy steps of EM: what FitDPEM and FitSeparatedGMM share (Park et al. 2016, corrected).

| module | purpose |
|---|---|
| `statistics` | the one statistic, responsibilities times moments; proof in `statistics.md` |
| `radius_statistics` | numbers of rows by their distance from a model; proof in `radius_statistics.md` |
| `kernel`, `array_kernel` | the same integers, compiled for CPUs and in terms of the array API |
| `decoding` | moments of each component from one noisy release |
| `em` | one EM step on released moments |
| `splitting` | the private start: cells that are split along released axes |
| `steps` | the releases of a run and their precisions; the run, and the updates between them |

Imports no fit.
"""
