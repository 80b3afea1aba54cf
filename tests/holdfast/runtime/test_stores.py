"""Opening of a process's stores."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from backend.api import Configure, NewMessage, PartitionSettings, Receive, ReceiveOptions, Send, Target
from backend.node import Node, NodeSettings
from holdfast.runtime.stores import Stores, open_metadata
from holdfast.settings import Settings, SettingsError, load
from metadata_service.cassandra.store import CassandraStore
from metadata_service.opening import CannotOpen
from tests.backend.nodes import FakeResolver
from tests.holdfast.pairs import Pair, make_pair
from tests.servers.cassandra_server import QUICK_START, CassandraCluster
from tests.tables import table


def settings_of(cassandra: CassandraCluster, keyspace: str, **more: Any) -> Settings:
    return load(
        {
            "cassandra": ",".join(cassandra.contact_points),
            "cassandra_port": cassandra.port,
            "cassandra_keyspace": keyspace,
            "cassandra_replication": "datacenter1=1",
            **more,
        },
        {},
    )


@pytest.fixture
async def stores(cassandra: CassandraCluster, keyspace: str) -> AsyncIterator[Stores]:
    stores = Stores(settings_of(cassandra, keyspace, cluster="east-2"))
    yield stores
    await stores.close()
    await stores.close()


async def serve_a_message(stores: Stores) -> None:
    """A node on these stores accepts a message, and its next incarnation delivers it."""
    target, resolver = Target(7, 7, 1), FakeResolver()
    resolver.known[7] = PartitionSettings(7, 7, 1, "arn:aws:sqs:us-east-1:000000000000:queue-7", b"k" * 16)

    async def start() -> Node:
        return await Node.start_on(
            await stores.journal(), await stores.entries(), resolver, settings=NodeSettings(name="one")
        )

    node = await start()
    await node.call(Configure(resolver.known[7]))
    await node.call(Send(target, [NewMessage(b"kept")]))
    await node.close()
    again = await start()
    assert [message.payload for message in await again.call(Receive(target, ReceiveOptions(10, 600, 0)))] == [b"kept"]
    await again.close()


async def test_in_the_data_folder_all_is_one_file(tmp_path: Path) -> None:
    settings = load({"data": str(tmp_path)}, {})
    stores = Stores(settings)
    metadata: Any = await stores.metadata()
    assert metadata.entries is await stores.entries()
    await serve_a_message(stores)
    await stores.close()
    await stores.close()
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"metadata.sqlite", "journal"}


async def test_in_cassandra_the_cluster_has_a_keyspace_of_its_own(stores: Stores, keyspace: str) -> None:
    metadata, entries = await stores.metadata(), await stores.entries()
    assert isinstance(metadata, CassandraStore)
    own = await stores._cluster()
    assert entries is own.entries
    assert (metadata.keyspace.name, own.keyspace.name) == (keyspace, f"{keyspace}_east_2")
    assert await stores.metadata() is metadata
    assert await stores.entries() is entries
    await serve_a_message(stores)
    assert [entry.incarnation for entry in await entries.logs("one")] == [1, 2]
    assert await metadata.entries.logs() == []
    assert {"journal", "checkpoints", "records"} <= set(await own.keyspace.tables() or ())
    assert "journal" not in (await metadata.keyspace.tables() or ())


async def test_a_process_has_one_connection_which_ends_with_the_last_user(stores: Stores) -> None:
    metadata, own = await stores.metadata(), await stores._cluster()
    assert isinstance(metadata, CassandraStore)
    connection = metadata.keyspace.connection
    assert own.keyspace.connection is connection
    await metadata.close()
    await serve_a_message(stores)
    await stores.close()
    assert connection.cluster.is_shutdown


async def test_a_keyspace_can_be_named(cassandra: CassandraCluster, keyspace: str) -> None:
    stores = Stores(settings_of(cassandra, keyspace, cassandra_cluster_keyspace=f"{keyspace}_x"))
    own = await stores._cluster()
    assert own.keyspace.name == f"{keyspace}_x"
    await stores.close()


async def test_the_metadata_alone_closes_its_connection(cassandra: CassandraCluster, keyspace: str) -> None:
    store = await open_metadata(settings_of(cassandra, keyspace))
    assert isinstance(store, CassandraStore)
    await store.close()
    assert store.keyspace.connection.cluster.is_shutdown


async def test_connections_to_cassandra_are_encrypted(tmp_path: Path, keyspace: str) -> None:
    cert, key, other = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "other.pem"
    make_pair().write(other, key)
    pair = make_pair()
    pair.write(cert, key)
    with CassandraCluster(heap="256m", java_options=QUICK_START, settings=encryption(pair, tmp_path)) as cassandra:
        store = await open_metadata(
            settings_of(
                cassandra,
                keyspace,
                cassandra_tls_ca=str(cert),
                cassandra_tls_cert=str(cert),
                cassandra_tls_key=str(key),
            )
        )
        assert isinstance(store, CassandraStore)
        query = "SELECT ssl_enabled FROM system_views.clients"
        assert set(await store.keyspace.connection.ask(query, None)) == {(True,)}
        await store.close()
        with pytest.raises(CannotOpen, match="certificate verify failed"):
            await open_metadata(settings_of(cassandra, keyspace, cassandra_tls_ca=str(other)))


def encryption(pair: Pair, folder: Path) -> str:
    """Lines of cassandra.yaml that permit clients to encrypt."""
    keystore = folder / "keystore.p12"
    key, certificate = load_pem_private_key(pair.key, None), load_pem_x509_certificate(pair.cert)
    assert isinstance(key, EllipticCurvePrivateKey)
    keystore.write_bytes(
        pkcs12.serialize_key_and_certificates(b"node", key, certificate, None, BestAvailableEncryption(b"password"))
    )
    return (
        "client_encryption_options:\n  enabled: true\n  optional: true\n  store_type: PKCS12\n"
        f"  keystore: {keystore}\n  keystore_password: password\n"
    )


@pytest.mark.parametrize(("given", "why"), table(__file__, "certificates that cannot be used"))
async def test_certificates_that_cannot_be_used_are_named(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        await open_metadata(load(given, {}))
