"""IncrementalAlterConfigs: handled together with AlterConfigs."""

from .alter_configs import handle

__all__ = ["handle"]
