"""Three turns of OpenAI's agents SDK with function tools, against the server whose URL is given."""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


@function_tool
def get_weather(city: Literal["Paris", "Oslo"], days: Literal[1, 2]) -> str:
    """Forecast the weather of a city."""
    return f"{days} days of sun in {city}"


@function_tool
def get_time(zone: Literal["UTC"]) -> str:
    """Tell the time."""
    return f"12:00 in {zone}"


async def main(url: str, model: str) -> None:
    """Run the turns, the last one streamed, and print their items."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    items = [{"role": "user", "content": "What is the weather, and what time is it?"}]
    for choice in ("get_weather", "get_time", "none"):
        agent = Agent(
            name="Clerk",
            instructions="Be brief.",
            model=OpenAIResponsesModel(model, client),
            tools=[get_weather, get_time],
            tool_use_behavior="stop_on_first_tool",
            model_settings=ModelSettings(
                tool_choice=choice,
                parallel_tool_calls=False,
                temperature=0.7,
                extra_body={"seed": 1, "stop": ["\n", " "]} if choice == "none" else {"seed": 1},
            ),
        )
        if choice == "none":
            done = Runner.run_streamed(agent, items)
            kinds = [event.type async for event in done.stream_events()]
            assert "raw_response_event" in kinds
        else:
            done = await Runner.run(agent, items)
        items = done.to_input_list()
    for item in items:
        print({key: item[key] for key in item if key not in ("id", "status")})
    wanted = ["function_call", "function_call_output"] * 2 + ["message"]
    assert [item.get("type") for item in items[1:]] == wanted
    names = [item["name"] for item in items if item.get("type") == "function_call"]
    assert names == ["get_weather", "get_time"]


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
