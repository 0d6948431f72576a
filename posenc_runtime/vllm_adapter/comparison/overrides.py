"""Our functions that vLLM calls in the place of its own: methods that we override, and functions that we wrap."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from posenc_runtime.vllm_adapter.comparison.signatures import misfits

_OURS = "posenc_runtime.vllm_adapter"
_METHODS = (classmethod, staticmethod)

# Classes whose objects only our code makes: their ``__init__`` need not take what that of vLLM's class takes.
MADE_BY_US = {
    "in_worker.attention.cpu._OwnLayout",
    "in_worker.attention.cpu.BiasImpl",
    "in_worker.attention.cpu.CopeImpl",
    "in_worker.attention.cpu.PlainImpl",
    "in_worker.attention.cuda._OwnKernels",
    "in_worker.attention.cuda.BiasImpl",
    "in_worker.attention.cuda.CopeImpl",
    "in_worker.attention.cuda.PlainImpl",
    "in_worker.models.decoder.PosencDecoderLayer",
    "in_worker.models.decoder.PosencModel",
    "in_worker.models.baichuan.BaichuanDecoderLayer",
}


@dataclasses.dataclass(frozen=True)
class Replaced:
    """A function of vLLM and the one of ours that is called in its place.

    Attributes:
        name: the name of our function, for messages.
        ours_has_object, stock_has_object: as in ``signatures.misfits``.
    """

    name: str
    ours: Callable[..., Any]
    stock: Callable[..., Any]
    ours_has_object: bool = True
    stock_has_object: bool = True

    def misfits(self) -> list[str]:
        """The ways to call vLLM's function that ours does not accept."""
        found = misfits(
            self.ours, self.stock, ours_has_object=self.ours_has_object, stock_has_object=self.stock_has_object
        )
        return [f"{self.name} {each}" for each in found]


def in_scheduler() -> Iterator[Replaced]:
    """Our functions that vLLM calls in the process with the scheduler."""
    from posenc_runtime.vllm_adapter import connector, scheduler
    from posenc_runtime.vllm_adapter.in_scheduler import arrivals
    from posenc_runtime.vllm_adapter.in_worker import answers

    yield from _of_classes([connector.PosencConnector, scheduler.PosencScheduler, scheduler._InStep])
    add = _stock("vllm.v1.engine.core", "EngineCore.preprocess_add_request")
    yield Replaced("arrivals.salting", arrivals.salting(add), add)
    choose = _stock("vllm.distributed.kv_transfer.kv_connector.utils", "KVOutputAggregator.from_connector")
    yield Replaced("answers.one_of", answers.one_of(choose, connector.PosencConnector), choose)


def in_server() -> Iterator[Replaced]:
    """Our functions that vLLM calls in the process with the HTTP routes."""
    from posenc_runtime.kv.deployment import Deployment
    from posenc_runtime.vllm_adapter.in_server import endpoints, fetching, handing_over, one_scale, requests, responses

    load = _stock("vllm.plugins", "load_endpoint_plugins")
    yield Replaced(
        "endpoints.load_endpoint_plugins",
        endpoints.with_ours(load),
        load,
        ours_has_object=False,
        stock_has_object=False,
    )
    any_deployment = Deployment(rope_type="default", original_max_position_embeddings=1, max_model_len=1)
    for (module, *path), answer in responses.WRAPPED.items():
        stock = _stock(module, ".".join(path))
        yield Replaced(f"responses around {'.'.join(path)}", answer(stock), stock, ours_has_object=False)
    for (module, *path), wrap in responses.OF_CHOICES.items():
        stock = _stock(module, ".".join(path))
        yield Replaced(f"responses around {'.'.join(path)}", wrap(stock), stock)
    for (module, *path), replace in fetching.WRAPPED.items():
        stock = _stock(module, ".".join(path))
        yield Replaced(f"fetching around {'.'.join(path)}", replace(stock), stock)
    generate = _stock("vllm.v1.engine.async_llm", "AsyncLLM.generate")
    named = responses.naming_stopped(generate, any_deployment)
    yield Replaced("responses.naming_stopped", named, generate, ours_has_object=False)
    handing = handing_over.handing_over(generate, any_deployment, b"", 30)
    yield Replaced("handing_over.handing_over", handing, generate, ours_has_object=False)
    for (module, *path), check in {**requests.WRAPPED, **one_scale.WRAPPED}.items():
        stock = _stock(module, ".".join(path))
        yield Replaced(f"requests around {'.'.join(path)}", check(stock, any_deployment), stock)


def offline() -> Iterator[Replaced]:
    """Our functions that vLLM calls in a process with ``LLM``."""
    from posenc_runtime.vllm_adapter import offline_beams

    for (module, *path), wrap in offline_beams.WRAPPED.items():
        stock = _stock(module, ".".join(path))
        yield Replaced(f"offline_beams around {'.'.join(path)}", wrap(stock), stock)


def in_cpu_runner() -> Iterator[Replaced]:
    """Our functions that vLLM calls in a worker on the CPU."""
    from posenc_runtime.vllm_adapter.in_worker import cpu_seeds

    sample = _stock("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.sample_tokens")
    yield Replaced("cpu_seeds.sample_tokens", cpu_seeds.sample_tokens, sample)


def everywhere() -> Iterator[Replaced]:
    """Every method of our classes that overrides one of vLLM's, and every function that stands in for one of vLLM's."""
    from posenc_runtime.vllm_adapter.in_worker.attention.implementation import Implementation
    from posenc_runtime.vllm_adapter.in_worker.complete_weights import completely
    from posenc_runtime.vllm_adapter.in_worker.rotary.registration import substitutes

    yield from _of_classes({*_classes(), *substitutes().values()})
    for function in (*in_scheduler(), *in_server(), *offline(), *in_cpu_runner()):
        if not function.name.startswith(("scheduler.", "connector.")):
            yield function
    for module, path in (
        ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl.__init__"),
        ("vllm.v1.attention.backends.triton_attn", "TritonAttentionImpl.__init__"),
    ):
        yield Replaced(f"Implementation for {path}", Implementation.__call__, _stock(module, path))
    load = _stock("vllm.model_executor.model_loader.default_loader", "DefaultModelLoader.load_weights")
    yield Replaced("complete_weights.completely", completely(load), load)


def abstract() -> list[str]:
    """Our classes that lack methods which vLLM's base classes demand, each with those methods."""
    return [
        f"{_short(each)} has no {', '.join(sorted(each.__abstractmethods__))}"
        for each in sorted(_classes(), key=_short)
        if getattr(each, "__abstractmethods__", None)
    ]


def _stock(module: str, path: str) -> Any:
    """vLLM's own function, even where ours has replaced it already."""
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return inspect.unwrap(getattr(found, "__func__", found))


def _classes() -> Iterator[type[Any]]:
    package = importlib.import_module(_OURS)
    for found in pkgutil.walk_packages(package.__path__, f"{_OURS}."):
        # Importing worker_extension would register all our classes in this process.
        if found.name.startswith((f"{_OURS}.releases", f"{_OURS}.comparison", f"{_OURS}.worker_extension")):
            continue
        module = importlib.import_module(found.name)
        for _, member in inspect.getmembers(module, inspect.isclass):
            if member.__module__ == module.__name__ and any(map(_is_of_vllm, member.__mro__)):
                yield member


def _of_classes(classes: Iterable[type[Any]]) -> Iterator[Replaced]:
    for each in sorted(classes, key=_short):
        yield from _overridden(each)


def _overridden(cls: type[Any]) -> Iterator[Replaced]:
    """The methods of our class, and of classes that we mix into it, that override vLLM's."""
    for name in sorted({name for base in cls.__mro__ if _is_ours(base) for name in vars(base)}):
        owner, *behind = [base for base in cls.__mro__ if name in vars(base)]
        stock_owner = next((base for base in behind if _is_of_vllm(base)), None)
        if not _is_ours(owner) or stock_owner is None or (name == "__init__" and _short(cls) in MADE_BY_US):
            continue
        ours, stock = vars(owner)[name], vars(stock_owner)[name]
        if not (_is_method(ours) and _is_method(stock)):
            continue
        yield Replaced(
            f"{_short(cls)}.{name}",
            ours.__func__ if isinstance(ours, _METHODS) else ours,
            stock.__func__ if isinstance(stock, _METHODS) else stock,
            ours_has_object=not isinstance(ours, staticmethod),
            stock_has_object=not isinstance(stock, staticmethod),
        )


def _is_method(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, _METHODS)


def _is_ours(cls: type[Any]) -> bool:
    return cls.__module__.startswith("posenc_runtime.")


def _is_of_vllm(cls: type[Any]) -> bool:
    return cls.__module__.startswith("vllm.")


def _short(cls: type[Any]) -> str:
    return f"{cls.__module__.removeprefix(f'{_OURS}.')}.{cls.__qualname__}"
