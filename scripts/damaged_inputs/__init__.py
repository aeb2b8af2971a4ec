"""Damaged inputs of the command line, and the failures that they cause, for ``scripts/fuzz``.

Modules, each of which imports only earlier ones:

* ``corpus``: the valid inputs;
* ``mutations``: changes of text and of bytes;
* ``case``: a call of the command line with its files;
* ``checkpoint_json``, ``checkpoint_tensors``, ``checkpoint_texts``, ``checkpoint_damage``: damage
  to folders of Hugging Face;
* ``module_kinds``, ``artifact_kinds``, ``model_kinds``, ``weight_kinds``, ``checkpoint_kinds``,
  ``command_kinds``: the kinds of inputs;
* ``kinds``: the table of kinds, with the share of each;
* ``outcomes``: how inputs ended; the files of failures;
* ``running``: running a case and judging it;
* ``server``: processes that run inputs;
* ``cluster``: ranges of inputs on the workers of a Dask scheduler.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the repository, or of the unpacked archive on a worker."""
