"""What Python takes for the package where it looks into the folder above a clone: the package.

Without this file a clone that is called ``subquant`` is a namespace there, with nothing in it.
"""

if __name__ == "subquant":
    from pathlib import Path as _Path

    __path__ = [str(_Path(__file__).parent / "plugin")]
    __file__ = str(_Path(__path__[0], "__init__.py"))
    exec(compile(_Path(__file__).read_bytes(), __file__, "exec"))
