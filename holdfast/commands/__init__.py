"""Commands of ``holdfast``; :mod:`holdfast.commands.main` dispatches."""
