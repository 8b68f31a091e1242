"""A Flask application that notifies its users: `flask run`."""

import os
import re

import requests
from flask import Flask, abort, jsonify, render_template, request, session

from signature import is_from_server

REALTIME_URL = os.environ.get("REALTIME_URL", "http://127.0.0.1:8080")
API_KEY = os.environ["SINEWS_API_KEY"]

app = Flask(__name__)
app.secret_key = os.environ["SECRET_KEY"]
app.config.update(SESSION_COOKIE_SAMESITE="Lax")

realtime = requests.Session()  # keeps its connection to the server
realtime.headers["Authorization"] = f"Bearer {API_KEY}"


def notify(user, title, text, key=None):
    """Shows a notification on all pages of a user. `key` makes a retry safe: the server publishes a key once."""
    message = {"topic": f"notifications.{user}", "data": {"title": title, "text": text}}
    if key:
        message["idempotency_key"] = key
    response = realtime.post(f"{REALTIME_URL}/api/v1/publish", json=message, timeout=5)
    response.raise_for_status()
    return response.json()


@app.get("/")
def index():
    return render_template("index.html", user=session.get("user"), realtime_url=REALTIME_URL)


@app.post("/login")
def login():
    """In the place of your login. The name becomes a part of a topic, so it has no dots and no wildcards."""
    user = request.form["user"]
    if not re.fullmatch("[a-z0-9_-]{1,32}", user):
        abort(422)
    session["user"] = user
    return index()


@app.post("/orders/<int:number>/ship")
def ship(number):
    """In the place of an event of your application."""
    notify(request.form["user"], "On its way", f"Order {number} was shipped.", key=f"ship-{number}")
    return jsonify(number=number, state="shipped")


@app.post("/hooks/connect")
def connect_hook():
    """The server asks whether a page may connect. The request has the page's cookies, so `session` is the user's."""
    if not is_from_server(request.headers.get("Sinews-Signature", ""), request.get_data()):
        abort(403)
    user = session.get("user")
    if not user:
        return jsonify(reject={"code": 4401, "reason": "log in first"})
    return jsonify(claims={"sub": user, "subscribe": [f"notifications.{user}"]})
