"""The text of a new regression test, the test classes that can hold it, and the imports that it needs.

`regression` decides which class gets it, and whether it shows the repair.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from ckpt_surgery.codemods.edits.imports import AddImport
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.static.text_edits import Edit, apply_edits
from ckpt_surgery.upstream.layout import LINE_LENGTH

TEST = "test_gradient_checkpointing_recomputes_every_block"

_LAYER = ("transformers.modeling_layers", "GradientCheckpointingLayer")
_IMPORTS = (_LAYER, ("transformers.testing_utils", "torch_device"), ("transformers.trainer_utils", "set_seed"))
_GENERIC = ("ModelTest", "ModelTesterMixin")
_METHOD = """\
    def @TEST@(self):
@PLAIN@        entered = set()

        def step(model, inputs):
            model.zero_grad()
            entered.clear()
            set_seed(42)
            outputs = model(**inputs)
            loss = getattr(outputs, "loss", None)
            output = outputs[0] if loss is None else loss
            if isinstance(output, (list, tuple)):
                output = output[-1]
            in_forward = set(entered)
            entered.clear()
            # Not the plain sum: the one of a layer norm's output has no gradient
            output.sin().sum().backward()
            return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, in_forward, set(entered)

        for model_class in self.all_model_classes:
            if not model_class.supports_gradient_checkpointing:
                continue
            for use_reentrant in @MODES@:
                with self.subTest(model_class=model_class.__name__, use_reentrant=use_reentrant):
                    config, inputs_dict = self.model_tester.prepare_config_and_inputs_for_common()
                    config.use_cache = False
                    inputs = self._prepare_for_class(inputs_dict, model_class, return_labels=True)
                    model = model_class(config).to(torch_device).train()
@BLOCKS@
                    # Hooks of a block itself may run outside the checkpoint, those of the modules in it do not
                    for name, block in blocks.items():
                        for module in set(block.modules()) - {block}:
                            module.register_forward_pre_hook(lambda *_, name=name: entered.add(name))

                    expected, in_forward, _ = step(model, inputs)
                    trained = {n for n in in_forward if any(p.grad is not None for p in blocks[n].parameters())}
                    model.@ENABLE@_enable(@ENABLE@_kwargs={"use_reentrant": use_reentrant})
                    grads, _, recomputed = step(model, inputs)
                    self.assertEqual(trained - recomputed, set(), "blocks that are not recomputed")
                    self.assertEqual(set(expected), set(grads), "parameters with a gradient")
                    wrong = {n for n in grads if not grads[n].allclose(expected[n], rtol=1e-4, atol=1e-5)}
                    self.assertEqual(wrong, set(), "gradients that checkpointing changes")
"""
_BLOCKS_BY_TYPE = """\
                    blocks = {n: m for n, m in model.named_modules() if isinstance(m, GradientCheckpointingLayer)}
"""
_BLOCKS_BY_NAME = """\
                    blocks = {
                        n: m
                        for n, m in model.named_modules()
                        if isinstance(m, GradientCheckpointingLayer) or type(m).__name__ in plain_blocks
                    }
"""


def method(blocks: Sequence[str], modes: Sequence[Mode], modeling_utils: str) -> str:
    """Return the test as a method, in upstream's format.

    Args:
        blocks: names of classes that are plain modules on the base and checkpointed on the series.
        modes: the modes that the test tries, at least one.
        modeling_utils: the text of upstream's `modeling_utils.py`, which shows the name of the method to call.
    """
    plain = ""
    if blocks:
        names = [f'"{name}"' for name in sorted(set(blocks))]
        line = f"        plain_blocks = {{{', '.join(names)}}}\n"
        if len(line) > LINE_LENGTH + 1:
            line = "        plain_blocks = {\n" + "".join(f"            {name},\n" for name in names) + "        }\n"
        plain = f"        # Also found by name, as the test would not see them without their base class\n{line}"
    tried = [str(mode == "reentrant") for mode in sorted(set(modes))]
    is_renamed = "def activation_checkpointing_enable(" in modeling_utils
    filled = {
        "TEST": TEST,
        "PLAIN": plain,
        "MODES": f"({', '.join(tried)}{',' if len(tried) == 1 else ''})",
        "BLOCKS": (_BLOCKS_BY_NAME if blocks else _BLOCKS_BY_TYPE).rstrip("\n"),
        "ENABLE": "activation_checkpointing" if is_renamed else "gradient_checkpointing",
    }
    text = _METHOD
    for name, value in filled.items():
        text = text.replace(f"@{name}@", value)
    return text


def model_tests(source: str) -> tuple[str, ...]:
    """Return the test classes of a file that inherit upstream's generic model tests, in order."""
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if any(base.endswith(_GENERIC) or base in names for base in bases):
                names.append(node.name)
    return tuple(names)


def with_method(source: str, classes: Sequence[str], text: str) -> str:
    """Add the method `text` at the end of each of these classes, and the imports that it needs to the file."""
    positions = SourceText(source)
    edits = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            end = positions.line_end(positions.offset(node.end_lineno or node.lineno, 0))
            edits.append(Edit("", end, end, f"\n\n{text}".rstrip("\n").replace("\n", positions.newline)))
    after = apply_edits(source, edits)
    for module, name in _IMPORTS:  # each where isort would put it
        facts = extract(after)
        if any(entry.name == name for entry in facts.imports):
            continue
        absolute = [entry for entry in facts.imports if not entry.module.startswith(".")]
        guards = [entry.guard for entry in absolute if "is_torch_available" in entry.guard]
        guard = next((guard for guard in guards if not guard.startswith("not ")), "")
        add = AddImport(module, name, width=LINE_LENGTH, guard=guard if (module, name) == _LAYER else "")
        after = add.transform_module(cst.parse_module(after)).code
    return after
