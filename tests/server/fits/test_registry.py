"""The table of fits, and what is read about them from the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from bursar_ledger import Role
from bursar_proto.v1 import catalog_pb2, dummy_pb2, fit_pb2, types_pb2
from bursar_server import process
from bursar_server.access.auth import METHOD_ROLES
from bursar_server.fits import registry
from bursar_server.fits.contract import BY_FIELD, METHODS, SERVICE, ContractError, methods_of


def test_every_fit_of_the_contract_is_registered() -> None:
    """The table has one line for each method of the service, and analysts alone may call it."""
    registry.check(registry.FITS)
    names = {method.name for method in SERVICE.methods}
    assert set(registry.FITS) == set(METHODS) == names - {"Preview"}
    assert {METHOD_ROLES[f"/bursar.v1.FitService/{name}"] for name in names} == {frozenset({Role.ANALYST})}


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_messages_and_fields_are_the_contracts(method: Any) -> None:
    """A request goes into a preview, a model into a dry run and into a fetched release, in the field of one name."""
    assert (method.request, method.response) == tuple(
        getattr(fit_pb2, f"{method.name}{kind}") for kind in ("Request", "Response")
    )
    assert BY_FIELD[method.field] is method
    request, model = method.request(dataset="people"), method.response().model
    assert fit_pb2.PreviewRequest(**{method.field: request}).WhichOneof("fit") == method.field
    for message in (dummy_pb2.DummyModel, catalog_pb2.GetReleaseResponse):
        assert message(**{method.field: model}).WhichOneof("model") == method.field


@pytest.mark.parametrize(
    ("fits", "unimplemented", "said"),
    [
        ((*METHODS, "FitNothing"), (), "FitNothing is registered, but FitService has no such method"),
        (METHODS, ("FitNothing",), "FitNothing is registered, but FitService has no such method"),
        ((), tuple(METHODS)[1:], "FitDPEM is neither registered in FITS nor listed in UNIMPLEMENTED"),
        (METHODS, ("FitMRF",), "FitMRF is both registered in FITS and listed in UNIMPLEMENTED"),
    ],
)
def test_a_table_that_disagrees_with_the_contract_is_refused(fits: Any, unimplemented: Any, said: str) -> None:
    """The method is named, and which of the two places lacks it."""
    with pytest.raises(registry.RegistryError, match=said):
        registry.check(fits, unimplemented)


def test_no_server_starts_with_such_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before a state directory is opened."""
    monkeypatch.setattr(process, "FITS", {name: fit for name, fit in registry.FITS.items() if name != "FitMRF"})
    with pytest.raises(process.StartError, match="FitMRF is neither registered"):
        process.serve(tmp_path, ready=print)


def _with_another_fit(*, previewed: bool) -> tuple[Any, Any]:
    """Return the service with one more fit, and its `PreviewRequest`."""
    pool = DescriptorPool()
    types, fit = FileDescriptorProto(), FileDescriptorProto()
    types_pb2.DESCRIPTOR.CopyToProto(types)
    fit_pb2.DESCRIPTOR.CopyToProto(fit)
    one_message: Any = {"label": FieldDescriptorProto.LABEL_OPTIONAL, "type": FieldDescriptorProto.TYPE_MESSAGE}
    fit.message_type.add(name="MeanRequest")
    fit.message_type.add(name="MeanModel")
    fit.message_type.add(name="MeanResponse").field.add(name="model", number=3, type_name="MeanModel", **one_message)
    fit.service[0].method.add(name="FitMean", input_type="MeanRequest", output_type="MeanResponse")
    if previewed:
        previews = next(one for one in fit.message_type if one.name == "PreviewRequest")
        previews.field.add(name="mean", number=99, type_name="MeanRequest", oneof_index=0, **one_message)
    pool.Add(types)
    pool.Add(fit)
    found = pool.FindFileByName(fit_pb2.DESCRIPTOR.name)
    return found.services_by_name["FitService"], found.message_types_by_name["PreviewRequest"]


def test_a_fit_without_a_field_of_its_own_is_refused() -> None:
    """The message that lacks the field is named: of previews, then of models."""
    with pytest.raises(ContractError, match=r"PreviewRequest\.fit: expected one field of type MeanRequest, found 0"):
        methods_of(*_with_another_fit(previewed=False))
    with pytest.raises(ContractError, match=r"DummyModel\.model: expected one field of type MeanModel, found 0"):
        methods_of(*_with_another_fit(previewed=True))
