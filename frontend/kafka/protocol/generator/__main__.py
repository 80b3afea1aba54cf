"""Write the codec: ``python -m frontend.kafka.protocol.generator``."""

from __future__ import annotations

from pathlib import Path

from frontend.kafka.protocol.generator import modules, table

GENERATED = Path(__file__).parents[1] / "generated"


def main() -> None:
    """Write all files of the folder ``generated`` again."""
    for old in GENERATED.glob("*.py"):
        old.unlink()
    for name, text in modules.write(table.read()).items():
        (GENERATED / name).write_text(text)


if __name__ == "__main__":
    main()
