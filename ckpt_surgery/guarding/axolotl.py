"""A plugin that guards what axolotl trains: `plugins: [ckpt_surgery.guarding.axolotl.CheckpointGuardPlugin]`.

Only this file imports axolotl, and nothing else imports this file.
"""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin

from ckpt_surgery.guarding.trainer import CheckpointGuard


class CheckpointGuardPlugin(BasePlugin):  # type: ignore[misc]  # axolotl is not read by the type checker
    """Guards axolotl's model, and wraps it if the configuration says `gradient_checkpointing: true`."""

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[CheckpointGuard]:
        """Return the guard's callback for the trainer that axolotl builds."""
        return [CheckpointGuard(wrap=cfg.gradient_checkpointing is True and not cfg.activation_offloading)]
