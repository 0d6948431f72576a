"""Refuses, before the engine starts, front-end arguments that vLLM would check only afterwards, or never."""

from __future__ import annotations

import argparse
import importlib
import inspect
import operator
import ssl

from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused


def refuse_unusable(args: argparse.Namespace) -> None:
    """Check the parsers, certificates and middleware that the server will load on this machine.

    Raises:
        ArgumentRefused: naming the setting.
    """
    _refuse_unknown_parsers(args)
    _refuse_certificates(args)
    _refuse_middleware(args.middleware)
    if args.lora_modules and not args.enable_lora:
        raise ArgumentRefused(
            "server.lora_modules: must be left out where engine.enable_lora is false, got "
            f"{', '.join(module.name for module in args.lora_modules)}: set engine.enable_lora to true"
        )


def _refuse_unknown_parsers(args: argparse.Namespace) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for name, manager, plugin in (
        ("server.tool_call_parser", ToolParserManager, "tool_parser_plugin"),
        ("engine.reasoning_parser", ReasoningParserManager, "reasoning_parser_plugin"),
        ("engine.structured_outputs_config.reasoning_parser", ReasoningParserManager, "reasoning_parser_plugin"),
    ):
        asked, known = operator.attrgetter(name.partition(".")[2])(args), manager.list_registered()
        if asked and asked not in known and not getattr(args, plugin, None):
            raise ArgumentRefused(f"{name}: must be one of {', '.join(sorted(known))}, got {asked!r}")


def _refuse_certificates(args: argparse.Namespace) -> None:
    certificate, key, authorities = args.ssl_certfile, args.ssl_keyfile, args.ssl_ca_certs
    if not certificate and not key:
        return
    if not certificate:
        raise ArgumentRefused(
            f"server.ssl_certfile: must be given with server.ssl_keyfile, got only server.ssl_keyfile {key!r}"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise ArgumentRefused(
            f"server.ssl_certfile, server.ssl_keyfile: must be files with a certificate and its private key, "
            f"got {certificate!r} and {key!r}: {error.strerror or error}"
        ) from None
    try:
        if authorities:
            context.load_verify_locations(authorities)
    except OSError as error:
        raise ArgumentRefused(
            f"server.ssl_ca_certs: must be a file of certificates, got {authorities!r}: {error.strerror or error}"
        ) from None


def _refuse_middleware(names: list[str]) -> None:
    for name in names:
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise _no_middleware(name, str(error)) from error
        if not inspect.isclass(found) and not inspect.iscoroutinefunction(found):
            raise _no_middleware(name, "it is neither")


def _no_middleware(name: str, why: str) -> ArgumentRefused:
    return ArgumentRefused(
        f"server.middleware: must name classes or coroutine functions, each as module.name, got {name!r}: {why}"
    )
