"""The REST interface: queues called v1, and the documentation; tests/frontend/cases has the rest."""

from starlette.routing import Route

from billing.reports.questions import DIRECT_FORMATS, MEDIA_TYPES
from tests.frontend.service import KEY, FrontendService


async def test_queues_called_v1_are_reached_as_ever(service: FrontendService) -> None:
    url = await service.make_queue("v1")
    for path in (f"/{KEY.account}/v1", "/v1", "/"):
        answer = await service.query("SendMessage", {"QueueUrl": url, "MessageBody": "b"}, path=path)
        assert answer.status == 200, answer.content
    for path in (f"/{KEY.account}/v1", "/v1"):
        answer = await service.query("SendMessage", {"MessageBody": "b"}, path=path)
        assert answer.status == 200, answer.content
    assert (await service.rest("GET", "/queues/v1")).json["messages"]["visible"] == 5


async def test_the_documentation_describes_it(service: FrontendService) -> None:
    paths = (await service.unsigned("GET", "/openapi.json", b"", {})).json["paths"]
    assert {"get", "post", "delete"} <= paths["/v1/queues/{name}/messages"].keys()
    assert paths["/v1/queues/{name}/purge"]["post"]["security"]
    assert "health" in {tag for path in paths.values() for way in path.values() for tag in way["tags"]}
    usage = {one["name"] for one in paths["/v1/usage"]["get"]["parameters"]}
    assert {"month", "day", "from", "to", "by", "tag", "account", "limit"} <= usage
    invoice = paths["/v1/invoices/{period}"]["get"]["responses"]["200"]["content"]
    assert {MEDIA_TYPES[form].partition(";")[0] for form in DIRECT_FORMATS} == invoice.keys()
    documents = "/v1/invoices/{period}/documents"
    assert {"200", "202"} <= paths[documents]["post"]["responses"].keys()
    content = paths[f"{documents}/{{job_id}}/content"]["get"]["responses"]["200"]["content"]
    assert {"application/pdf", "message/rfc822"} == content.keys()


async def test_the_first_request_builds_no_routes(service: FrontendService) -> None:
    """FastAPI builds the routes of an included router again when it matches the first path."""
    routes = service.app.rest.routes
    assert {route.path for route in routes if isinstance(route, Route)} >= {"/v1/queues", "/health/ready"}
    assert [route for route in routes if not isinstance(route, Route)] == []
