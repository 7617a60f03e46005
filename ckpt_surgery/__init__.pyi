"""The public names and where they live: the one list of them. `__init__.py` reads it; type checkers do too."""

__all__: list[str]

from ckpt_surgery.codemods.finding import Applicability as Applicability
from ckpt_surgery.codemods.finding import Finding as Finding
from ckpt_surgery.codemods.repair import SourceRepair as SourceRepair
from ckpt_surgery.errors import CannotBuild as CannotBuild
from ckpt_surgery.errors import CkptSurgeryError as CkptSurgeryError
from ckpt_surgery.errors import DoesNotFitError as DoesNotFitError
from ckpt_surgery.errors import GuardError as GuardError
from ckpt_surgery.errors import MissingPackageError as MissingPackageError
from ckpt_surgery.errors import OptionError as OptionError
from ckpt_surgery.errors import OptionTypeError as OptionTypeError
from ckpt_surgery.errors import PlanningError as PlanningError
from ckpt_surgery.errors import SurgeryError as SurgeryError
from ckpt_surgery.errors import SurgeryWarning as SurgeryWarning
from ckpt_surgery.errors import TransformersNotFound as TransformersNotFound
from ckpt_surgery.errors import VerifyError as VerifyError
from ckpt_surgery.guarding.guard import Guard as Guard
from ckpt_surgery.guarding.guard import guard as guard
from ckpt_surgery.guarding.report import GuardReport as GuardReport
from ckpt_surgery.guarding.trainer import CheckpointGuard as CheckpointGuard
from ckpt_surgery.long_sequences.long_context import LongContext as LongContext
from ckpt_surgery.long_sequences.long_context import long_context as long_context
from ckpt_surgery.measure.report import Report as Report
from ckpt_surgery.measure.results import Cost as Cost
from ckpt_surgery.measure.results import ModeReport as ModeReport
from ckpt_surgery.measure.verify import verify as verify
from ckpt_surgery.planning.explain import explain as explain
from ckpt_surgery.planning.explanation import Explanation as Explanation
from ckpt_surgery.planning.fastest import FastestWrap as FastestWrap
from ckpt_surgery.planning.fastest import wrap_fastest as wrap_fastest
from ckpt_surgery.planning.plan import Plan as Plan
from ckpt_surgery.planning.plan import plan as plan
from ckpt_surgery.runtime.surgery.surgery import Surgery as Surgery
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks as wrap_blocks
from ckpt_surgery.static.apply import apply as apply
from ckpt_surgery.static.check import check as check
from ckpt_surgery.static.results import ApplyResult as ApplyResult
from ckpt_surgery.static.results import CheckResult as CheckResult
from ckpt_surgery.static.results import FileChange as FileChange
from ckpt_surgery.static.results import Problem as Problem
from ckpt_surgery.testing.assertions import assert_checkpointing as assert_checkpointing
from ckpt_surgery.tiny.inputs import tiny_inputs as tiny_inputs
from ckpt_surgery.tiny.model import tiny_model as tiny_model
from ckpt_surgery.tiny.shrink import tiny_config as tiny_config
from ckpt_surgery.version import __version__ as __version__
