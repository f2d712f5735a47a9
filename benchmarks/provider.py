"""The least that a provider can be: canned answers in four protocols, without reading what was asked.

`python provider.py [latency in seconds]` prints {"url": ...} and serves until standard input ends. The path says what
comes back: `/runs/<turns>/<name>/...` answers the first `turns - 1` requests of a name with one tool call and the last
one with text. Answers hold what makes histories grow: reasoning with a signature, and usage.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from typing import ClassVar

TOOL = "queryData"
#: 60 rows, about 2 KB.
ARGUMENTS = {
    "query": "SELECT [Industry], [Region__c], COUNT(*) AS [Accounts] FROM [CRM_System].[Salesforce].[Account] "
    "GROUP BY [Industry], [Region__c] ORDER BY [Industry], [Region__c]"
}
_THOUGHT = "The accounts come first, then their incidents. " * 8
_SIGNATURE = "c2lnbmF0dXJl" * 40
_TEXT = "A-1001, A-1002, A-1003"


def messages(call_id: str | None) -> object:
    last = (
        {"type": "tool_use", "id": call_id, "name": TOOL, "input": ARGUMENTS}
        if call_id
        else {"type": "text", "text": _TEXT}
    )
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "bench-1",
        "content": [{"type": "thinking", "thinking": _THOUGHT, "signature": _SIGNATURE}, last],
        "stop_reason": "tool_use" if call_id else "end_turn",
        "usage": {"input_tokens": 900, "output_tokens": 80, "cache_read_input_tokens": 300},
    }


def responses(call_id: str | None) -> object:
    last = (
        {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": TOOL, "arguments": json.dumps(ARGUMENTS),
         "status": "completed"}
        if call_id
        else {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
              "content": [{"type": "output_text", "text": _TEXT, "annotations": []}]}
    )  # fmt: skip
    return {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "bench-1",
        "output": [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": _SIGNATURE}, last],
        "usage": {
            "input_tokens": 900,
            "input_tokens_details": {"cached_tokens": 300},
            "output_tokens": 80,
            "output_tokens_details": {"reasoning_tokens": 20},
            "total_tokens": 980,
        },
    }


def completions(call_id: str | None) -> object:
    message: dict[str, object] = {"role": "assistant", "content": "" if call_id else _TEXT}
    message["reasoning_content"] = _THOUGHT
    if call_id:
        function = {"name": TOOL, "arguments": json.dumps(ARGUMENTS)}
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    return {
        "id": "chat_1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench-1",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if call_id else "stop"}],
        "usage": {"prompt_tokens": 900, "completion_tokens": 80, "total_tokens": 980},
    }


def generate(call_id: str | None) -> object:
    last = (
        {"functionCall": {"id": call_id, "name": TOOL, "args": ARGUMENTS}, "thoughtSignature": _SIGNATURE}
        if call_id
        else {"text": _TEXT}
    )
    return {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": _THOUGHT, "thought": True}, last]}, "finishReason": "STOP"}
        ],
        "usageMetadata": {
            "promptTokenCount": 900,
            "candidatesTokenCount": 60,
            "thoughtsTokenCount": 20,
            "totalTokenCount": 980,
        },
        "modelVersion": "bench-1",
    }


#: Ending of the path -> the answer, and what stands in the request once for each tool result (JSON without spaces).
_ANSWERS = {
    "/v1/messages": (messages, b'"tool_use_id":'),
    "/v1/responses": (responses, b'"type":"function_call_output"'),
    "/chat/completions": (completions, b'"role":"tool"'),
    ":generateContent": (generate, b'"functionResponse":'),
}


class Provider(asyncio.Protocol):
    """One connection. Understands requests with a Content-Length, one at a time."""

    asked: ClassVar[Counter[str]] = Counter()
    latency_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        length = next((int(x[15:]) for x in lines if x.lower().startswith("content-length:")), 0)
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        answer = self.answer(lines[0].split(" ")[1], rest[:length])
        asyncio.get_running_loop().call_later(self.latency_s, self.transport.write, answer)

    def answer(self, path: str, request: bytes) -> bytes:
        _, _, turns, name, _ = path.split("/", 4)
        make, result = next(known for end, known in _ANSWERS.items() if path.endswith(end))
        if name == "counted":
            number = 1 + request.count(result)
            last = number >= int(turns)
        else:
            self.asked[name] += 1
            number = self.asked[name]
            last = number >= int(turns)
            if last:
                del self.asked[name]
        body = json.dumps(make(None if last else f"call{number:05d}")).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode() + body


async def main() -> None:
    loop = asyncio.get_running_loop()
    Provider.latency_s = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    server = await loop.create_server(Provider, "127.0.0.1", 0, backlog=2048)
    ended = asyncio.Event()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
