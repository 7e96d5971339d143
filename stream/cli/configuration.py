"""`config`: check, show or begin a configuration."""

from __future__ import annotations

import argparse
import sys

from schemas.config import Config
from schemas.errors import OutputError, printable
from stream.config_file import load_config
from stream.describe import default_toml, toml_of


def check(options: argparse.Namespace) -> int:
    """Say that a configuration is right; ConfigError says what is wrong."""
    config = load_config(options.file)
    sys.stdout.write(f"{printable(str(options.file))}: fine, digest {config.digest}\n")
    return 0


def show(options: argparse.Namespace) -> int:
    """Print a configuration with every default filled in."""
    config = load_config(options.file)
    if options.json:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(config)).decode() + "\n")
    else:
        sys.stdout.write(f"# digest {config.digest}\n{toml_of(config)}\n")
    return 0


def init(options: argparse.Namespace) -> int:
    """Write the default configuration, commented; never over a file that is there."""
    text = default_toml(Config())
    if options.file is None:
        sys.stdout.write(text)
        return 0
    try:
        with options.file.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OutputError("is there already", where=str(options.file), hint="name another file") from None
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(options.file)) from None
    sys.stdout.write(f"wrote {printable(str(options.file))}\n")
    return 0
