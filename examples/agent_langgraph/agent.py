"""A LangGraph agent with tools, as it was before any training: it answers questions about contacts."""

from __future__ import annotations

import json
import os
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def build_graph(contacts: dict[str, str]) -> Any:
    """Return a graph of a model and its tools, which ends at the answer."""

    @tool
    def contacts_search(query: str) -> str:
        """Search the contacts by name."""
        return json.dumps([{"name": n, "number": number} for n, number in contacts.items() if query in n])

    @tool
    def finish(answer: str) -> str:
        """Give the answer to the user."""
        return answer

    tools = [contacts_search, finish]
    model = ChatOpenAI(model="policy").bind_tools(tools)  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_conditional_edges(
        "tools", lambda state: END if state["messages"][-1].name == "finish" else "model"
    )
    return graph.compile()


def answer(question: str, contacts: dict[str, str]) -> str:
    """Return the answer of the model, or nothing if it gives none in four calls."""
    try:
        start = {"messages": [("user", question)]}
        last = build_graph(contacts).invoke(start, {"recursion_limit": 8})["messages"][-1]
    except GraphRecursionError:
        return ""
    return str(last.content) if last.type == "tool" else ""


if __name__ == "__main__":  # what training adds: a task, and a reward
    task = json.loads(os.environ["LIT_AGENTRL_TASK"])
    found = answer(task["question"], task["contacts"])
    is_right = found == task["answer"]
    print(json.dumps({"reward": 0.5 * bool(found) + 0.5 * is_right, "success": is_right}))
