"""The hook as a view of Django: path("hooks/connect", connect_hook) in urls.py."""

from django.http import HttpResponseForbidden, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from signature import is_from_server


@csrf_exempt
@require_POST
def connect_hook(request):
    if not is_from_server(request.headers.get("Sinews-Signature", ""), request.body):
        return HttpResponseForbidden()
    if not request.user.is_authenticated:
        return JsonResponse({"reject": {"code": 4401, "reason": "log in first"}})
    user = str(request.user.pk)
    return JsonResponse({"claims": {"sub": user, "subscribe": [f"notifications.{user}"]}})
