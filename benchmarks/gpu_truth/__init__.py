"""The campaign: the matrix of cases, measured on a GPU, set beside paper, and made into facts (docs/calibration.md).

It is no part of the installation: it needs a checkout, torch, transformers and PyYAML, and neither Ray nor pydantic.
`make gpu-truth`, `make gpu-facts`, `make rehearse-gpu-truth` and its tests call it.
"""
