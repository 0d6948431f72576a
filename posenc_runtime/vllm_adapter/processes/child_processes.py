"""The processes that vLLM starts for an engine of ours: each ends with its parent.

vLLM starts a process with one of its own functions as the target. We put functions of this module in their place. They
run in the new process before vLLM's do. A process of an engine without a section of ours is left as it is.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from posenc_runtime.vllm_adapter.contract.names import DEPLOYMENT_SECTION
from posenc_runtime.vllm_adapter.processes.ending import end_with_parent, exit_quickly, leave_process_group

_Target = Callable[..., None]
_NOT_ACCEPTING = 2**31 - 1  # vLLM's number of connections of a server that takes none


def run_engine_core(*args: Any, **kwargs: Any) -> None:
    """The target of an engine core's process."""
    if _is_ours(kwargs["vllm_config"]):
        end_with_parent()
        leave_process_group()
        exit_quickly()
        install()  # for its workers
    _stock(run_engine_core)(*args, **kwargs)


def run_worker(*args: Any, **kwargs: Any) -> None:
    """The target of a worker's process."""
    if _is_ours(kwargs["vllm_config"]):
        end_with_parent()
        exit_quickly()
    _stock(run_worker)(*args, **kwargs)


def run_api_server(listen_address: str, sock: Any, args: Any, client_config: Any = None, **kwargs: Any) -> None:
    """The target of the process of one of several API servers."""
    serve = functools.partial(_stock(run_api_server), listen_address, sock, args, client_config, **kwargs)
    if not _is_ours(args):
        serve()
        return
    end_with_parent()
    leave_process_group()
    exit_quickly()
    with closed_by_the_last(sock, client_config or {}):
        serve()


def run_coordinator(*args: Any, **kwargs: Any) -> None:
    """The target of the process that spreads requests over parallel engines; it is not told of which engines."""
    end_with_parent()
    leave_process_group()
    _stock(run_coordinator)(*args, **kwargs)


# vLLM's targets, by module, class and name, and ours in their place.
REPLACED: Mapping[tuple[str, str | None, str], _Target] = {
    ("vllm.v1.engine.core", "EngineCoreProc", "run_engine_core"): run_engine_core,
    ("vllm.v1.executor.multiproc_executor", "WorkerProc", "worker_main"): run_worker,
    ("vllm.v1.utils", None, "run_api_server_worker_proc"): run_api_server,
    ("vllm.v1.engine.coordinator", "DPCoordinatorProc", "run_coordinator"): run_coordinator,
}
_replaced: dict[_Target, _Target] = {}  # in this process, or in the one that it was forked from


def install() -> None:
    """Put our targets in the place of vLLM's, in this process; may be called again."""
    for (module, class_name, name), ours in REPLACED.items():
        owner = _owner(module, class_name)
        stock = getattr(owner, name)
        if stock is not ours:
            _replaced[ours] = stock
            setattr(owner, name, staticmethod(ours) if class_name else ours)


def _stock(ours: _Target) -> _Target:
    if ours in _replaced:
        return _replaced[ours]
    ((module, class_name, name),) = (place for place, target in REPLACED.items() if target is ours)
    found: _Target = getattr(_owner(module, class_name), name)
    return found


def _owner(module: str, class_name: str | None) -> Any:
    imported = importlib.import_module(module)
    return getattr(imported, class_name) if class_name else imported


def _is_ours(configured: Any) -> bool:
    """Whether vLLM's configuration, or the arguments of its server, have a section of ours."""
    additional = getattr(configured, "additional_config", None)
    return isinstance(additional, Mapping) and DEPLOYMENT_SECTION in additional


@contextlib.contextmanager
def closed_by_the_last(listening: socket.socket, client_config: Mapping[str, Any]) -> Iterator[None]:
    """When the last of several API servers ends, close their port for all processes.

    The parent does not answer. With the port open, clients would be connected, and wait until the parent ends.

    Args:
        listening: the servers' socket.
        client_config: of one server, from vLLM. ``api_server_loads`` has the open connections of each; where it is
            missing, the port stays open.
    """
    loads, kept = client_config.get("api_server_loads"), listening.dup()
    try:
        yield
    finally:
        if loads is not None and min(loads) == _NOT_ACCEPTING:
            with contextlib.suppress(OSError):  # another server has closed it
                kept.shutdown(socket.SHUT_RDWR)
        kept.close()
