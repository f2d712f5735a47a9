"""Google's generateContent: `POST .../v1/models/<model>:generateContent` (also v1beta), plain and streamed."""

from __future__ import annotations

import json
from typing import Any

from pytest_ctxbench.local.policies.conversation import Call, Move, OfferedTool, Result, Turn, View

from .checks import Checker
from .wire import ApiError, Asked, Incoming, Json, Output, Spent, Traits, make_id, measure, seal, sse, unseal, write_out

__all__ = ["Generate"]

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_FIELDS = ("contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings",
           "cachedContent", "labels", "serviceTier", "store")  # fmt: skip
_CONFIG = ("temperature", "topP", "topK", "candidateCount", "maxOutputTokens", "stopSequences", "responseMimeType",
           "responseSchema", "responseJsonSchema", "presencePenalty", "frequencyPenalty", "seed", "thinkingConfig",
           "responseModalities", "mediaResolution", "responseLogprobs", "logprobs")  # fmt: skip
_THINKING = ("thinkingLevel", "thinkingBudget", "includeThoughts")
_PART = ("text", "thought", "thoughtSignature", "functionCall", "functionResponse", "partMetadata")
_DECLARATION = (
    "name",
    "description",
    "parameters",
    "parametersJsonSchema",
    "response",
    "responseJsonSchema",
    "behavior",
)
#: What the `parameters` form of a schema may say; the JSON-schema form takes everything.
_SCHEMA = frozenset(
    {
        "type", "format", "title", "description", "nullable", "enum", "items", "maxItems", "minItems", "properties",
        "required", "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf",
        "propertyOrdering", "default", "minimum", "maximum",
    }
)  # fmt: skip
_LEVELS = ("MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


class Generate:
    """Checks requests as the vendor does and writes replies in its shape. Names may be in camel or snake case."""

    def error(self, status: int, message: str) -> ApiError:
        kind = _STATUS.get(status, "UNKNOWN")
        return ApiError(status, {"error": {"code": status, "message": message, "status": kind}})

    def model_of(self, incoming: Incoming) -> str:
        return incoming.path_model

    def unknown_model(self, model: str) -> ApiError:
        return self.error(
            404, f"models/{model} is not found for API version v1, or is not supported for generateContent."
        )

    def overflow(self, asked: Asked, tokens: int, window: int) -> ApiError:
        message = f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({window})."
        return self.error(400, message)

    def fields(self, value: object, known: tuple[str, ...], where: str) -> Json:
        """An object with its names in camel case; a name that is not known is refused."""
        if not isinstance(value, dict):
            raise self.error(400, f"Invalid value at '{where}': expected an object.")
        out: Json = {}
        for name, inner in value.items():
            if _camel(name) not in known:
                at = f" at '{where}'" if where else ""
                raise self.error(400, f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.')
            out[_camel(name)] = inner
        return out

    def read(self, incoming: Incoming, traits: Traits) -> Asked:
        check = Checker(lambda where, message: self.error(400, f"Invalid value at '{where}': {message}"))
        if not incoming.headers.get("x-goog-api-key") and not incoming.query.get("key"):
            raise self.error(403, "Method doesn't allow unregistered callers (callers without established identity).")
        body = self.fields(incoming.body, _FIELDS, "")
        config = self.fields(body.get("generationConfig") or {}, _CONFIG, "generation_config")
        thinking = self.fields(config.get("thinkingConfig") or {}, _THINKING, "generation_config.thinking_config")
        for name in traits.rejects:
            if config.get(_camel(name)) is not None:
                raise self.error(400, f"{name} is not supported for this model.")
        if config.get("temperature") is not None:
            check.number(config["temperature"], 0, 2, "generation_config.temperature")
        level = thinking.get("thinkingLevel")
        if level is not None:
            check.one_of(str(level).upper(), _LEVELS, "generation_config.thinking_config.thinking_level")
        cap = config.get("maxOutputTokens")
        reader = _Contents(self, check)
        prompt, turns = reader.read(body.get("contents"))
        return Asked(
            model=incoming.path_model,
            view=View(self._system(body, reader), prompt, self._tools(body.get("tools") or [], check), turns),
            max_tokens=None if cap is None else check.whole(cap, 1, "generation_config.max_output_tokens"),
            thinks=traits.reasons and thinking.get("thinkingBudget") != 0,
            show_thinking=bool(thinking.get("includeThoughts")),
            stream=incoming.stream,
        )

    def _system(self, body: Json, reader: _Contents) -> str:
        system = body.get("systemInstruction")
        if system is None:
            return ""
        content = self.fields(system, ("parts", "role"), "system_instruction")
        parts = reader.parts(content.get("parts"), "system_instruction")
        return "".join(str(p.get("text") or "") for p in parts)

    def _tools(self, value: object, check: Checker) -> tuple[OfferedTool, ...]:
        tools: list[OfferedTool] = []
        for index, raw in enumerate(check.items(value, "tools")):
            where = f"tools[{index}]"
            tool = self.fields(raw, ("functionDeclarations",), where)
            for number, declared in enumerate(check.items(tool.get("functionDeclarations"), where)):
                at = f"{where}.function_declarations[{number}]"
                declaration = self.fields(declared, _DECLARATION, at)
                name = check.text(declaration.get("name"), f"{at}.name")
                schema = declaration.get("parametersJsonSchema")
                if schema is None:
                    schema = declaration.get("parameters") or {}
                    self._plain_schema(schema, f"{at}.parameters")
                elif "parameters" in declaration:
                    raise self.error(400, f"{at}: only one of parameters and parameters_json_schema may be set.")
                if any(t.name == name for t in tools):
                    raise self.error(400, f"Duplicate function declaration found: {name}")
                tools.append(OfferedTool(name, str(declaration.get("description") or ""), check.mapping(schema, at)))
        return tuple(tools)

    def _plain_schema(self, schema: object, where: str) -> None:
        if not isinstance(schema, dict):
            raise self.error(400, f"Invalid value at '{where}': expected an object.")
        for name, value in schema.items():
            if _camel(name) not in _SCHEMA or (name == "type" and not isinstance(value, str)):
                raise self.error(
                    400, f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field."
                )
        for name, inner in (schema.get("properties") or {}).items():
            self._plain_schema(inner, f"{where}.properties[{name}]")
        if schema.get("items") is not None:
            self._plain_schema(schema["items"], f"{where}.items")
        for number, inner in enumerate(schema.get("anyOf") or schema.get("any_of") or []):
            self._plain_schema(inner, f"{where}.any_of[{number}]")

    # --- replies ----------------------------------------------------------------------------------------------------

    def spent(self, asked: Asked, output: Output) -> Spent:
        return measure(asked, output)

    def write(self, asked: Asked, move: Move) -> Output:
        return write_out(asked, move, "fc_")

    def reply(self, asked: Asked, output: Output, spent: Spent) -> Json:
        parts: list[Json] = []
        if output.thinking and asked.show_thinking:
            parts.append({"text": output.thinking, "thought": True})
        if output.text:
            parts.append({"text": output.text})
        for index, call in enumerate(output.calls):
            if call.arguments is None:
                continue  # the vendor drops a call that it cannot parse
            part: Json = {"functionCall": {"id": call.id, "name": call.tool, "args": call.arguments}}
            if index == 0:
                part["thoughtSignature"] = _signature(output, call.tool)
            parts.append(part)
        if output.calls and not output.cut and not any("functionCall" in p for p in parts):
            finish = "MALFORMED_FUNCTION_CALL"
        else:
            finish = "MAX_TOKENS" if output.cut else "STOP"
        candidate: Json = {"content": {"role": "model", "parts": parts}, "finishReason": finish, "index": 0}
        reply: Json = {
            "candidates": [candidate],
            "usageMetadata": _usage(spent),
            "modelVersion": asked.model,
            "responseId": make_id("", asked, 0, "response"),
        }
        if output.refusal:
            del reply["candidates"]
            reply["promptFeedback"] = {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": output.refusal}
        return reply

    def events(self, asked: Asked, reply: Json) -> list[bytes]:
        parts = reply["candidates"][0]["content"]["parts"] if "candidates" in reply else []
        out: list[bytes] = []
        for part in parts[:-1]:
            candidate = {"content": {"role": "model", "parts": [part]}, "index": 0}
            out.append(sse({**reply, "candidates": [candidate]}))
        if parts:
            last = {**reply["candidates"][0], "content": {"role": "model", "parts": parts[-1:]}}
            out.append(sse({**reply, "candidates": [last]}))
        return out or [sse(reply)]


def _usage(spent: Spent) -> Json:
    usage: Json = {
        "promptTokenCount": spent.prompt,
        "candidatesTokenCount": spent.answer,
        "totalTokenCount": spent.prompt + spent.answer + spent.reasoning,
    }
    if spent.cached:
        usage["cachedContentTokenCount"] = spent.cached
    if spent.reasoning:
        usage["thoughtsTokenCount"] = spent.reasoning
    return usage


def _signature(output: Output, tool: str) -> str:
    return seal(output.thinking, f"thought:{tool}")


class _Contents:
    """Reads `contents` into a prompt and turns, refusing what the vendor refuses."""

    def __init__(self, api: Generate, check: Checker) -> None:
        self.api, self.check = api, check

    def parts(self, value: object, where: str) -> list[Json]:
        items = self.check.items(value, f"{where}.parts")
        if not items:
            raise self.api.error(400, f"* {where}.parts: contents.parts must not be empty.")
        parts = [self.api.fields(p, _PART, f"{where}.parts[{i}]") for i, p in enumerate(items)]
        for part in parts:
            if not any(name in part for name in ("text", "functionCall", "functionResponse")):
                message = f"* {where}.parts: required oneof field 'data' must have one initialized field"
                raise self.api.error(400, message)
        return parts

    def read(self, value: object) -> tuple[str, tuple[Turn, ...]]:
        contents = self.check.items(value, "contents")
        if not contents:
            raise self.api.error(400, "* GenerateContentRequest.contents: contents is not specified")
        prompts: list[str] = []
        turns: list[Turn] = []
        pending: list[tuple[str | None, Call]] = []
        for index, raw in enumerate(contents):
            where = f"contents[{index}]"
            content = self.api.fields(raw, ("role", "parts"), where)
            role = content.get("role", "user")
            if role not in ("user", "model"):
                raise self.api.error(400, "Please use a valid role: user, model.")
            parts = self.parts(content.get("parts"), where)
            responses = [p["functionResponse"] for p in parts if "functionResponse" in p]
            if responses or pending:
                if role != "user" or len(responses) != len(pending):
                    raise self.api.error(
                        400,
                        "Please ensure that the number of function response parts is equal to the number of function "
                        "call parts of the function call turn.",
                    )
                results = self._results(responses, pending, where)
                turns[-1] = Turn(turns[-1].text, turns[-1].thinking, turns[-1].calls, results)
                pending = []
            if role == "model":
                if not prompts:
                    raise self.api.error(
                        400,
                        "Please ensure that function call turn comes immediately after a user turn or after a function "
                        "response turn.",
                    )
                turn, pending = self._model(parts, index + 1)
                turns.append(turn)
            else:
                text = "".join(str(p.get("text") or "") for p in parts)
                if text:
                    prompts.append(text)
        if pending:
            raise self.api.error(
                400,
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn.",
            )
        return "\n\n".join(prompts), tuple(turns)

    def _model(self, parts: list[Json], position: int) -> tuple[Turn, list[tuple[str | None, Call]]]:
        thinking, text = "", ""
        calls: list[tuple[str | None, Call]] = []
        for part in parts:
            if "text" in part:
                if not part.get("thought"):
                    text += str(part["text"])
                continue
            call = self.api.fields(part.get("functionCall"), ("id", "name", "args"), "function_call")
            name = self.check.text(call.get("name"), "function_call.name")
            if not calls:
                signature = part.get("thoughtSignature")
                if not signature:
                    raise self.api.error(
                        400,
                        "Function call is missing a thought_signature in functionCall parts. This is required for "
                        f"tools to work correctly. Function call `{name}` in the {position}. content block.",
                    )
                found = self._thought(signature, name)
                if found is None:
                    raise self.api.error(400, "Thought signature is not valid.")
                thinking = found
            calls.append((call.get("id"), Call(name, self.check.mapping(call.get("args") or {}, "function_call.args"))))
        return Turn(text, thinking, tuple(c for _, c in calls)), calls

    def _thought(self, signature: Any, tool: str) -> str | None:
        plain = str(signature).replace("-", "+").replace("_", "/")
        return unseal(plain + "=" * (-len(plain) % 4), f"thought:{tool}")

    def _results(self, responses: list[Any], pending: list[tuple[str | None, Call]], where: str) -> tuple[Result, ...]:
        """Responses are matched by id where they have one, else by position; names must agree."""
        results: list[Result | None] = [None] * len(pending)
        for number, raw in enumerate(responses):
            response = self.api.fields(
                raw, ("id", "name", "response", "willContinue", "scheduling", "parts"), f"{where}.function_response"
            )
            ids = [call_id for call_id, _ in pending]
            at = ids.index(response["id"]) if response.get("id") in ids and response.get("id") else number
            name = pending[at][1].tool
            if response.get("name") != name or results[at] is not None:
                raise self.api.error(
                    400, f"Function response `{response.get('name')}` does not match the function call `{name}`."
                )
            body = self.check.mapping(response.get("response"), "function_response.response")
            failed = "error" in body and "result" not in body and "output" not in body
            value = body.get("result", body.get("output", body.get("error", body)))
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            results[at] = Result(name, text, failed)
        return tuple(r for r in results if r is not None)
