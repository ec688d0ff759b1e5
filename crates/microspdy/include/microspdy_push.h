/* Functions of Tandem's microspdy library that libmicrospdy lacks: server push,
   priorities, the version of a session, and the end of requests without a
   response.

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#ifndef SPDYX_MICROSPDY_PUSH_H
#define SPDYX_MICROSPDY_PUSH_H

#include "microspdy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A flag for SPDY_DAEMON_OPTION_FLAGS: sessions over plain TCP use SPDY/3.1
   instead of SPDY/3. Over TLS, the handshake chooses the version. */
#define SPDYX_DAEMON_FLAG_VERSION_3_1 0x10000

/* Pushes a response to a GET request that the client has not sent. scheme, host
   and path name the resource; scheme is "http" or "https", and path begins with
   a slash. priority is 0 (first) to 7. The push is announced at once. It should
   therefore be made before the response to the request is queued, which mentions
   the resource. The status of the response must be 200.

   Returns a request that stands for the push, which the program has to destroy,
   after rrcb was called. Returns NULL if the request's stream has ended, if the
   client takes no pushes or no more of them, or if an argument is illegal. */
_MHD_EXTERN struct SPDY_Request *
SPDYX_push_response (struct SPDY_Request *request, const char *scheme,
                     const char *host, const char *path, uint8_t priority,
                     struct SPDY_Response *response,
                     SPDY_ResponseResultCallback rrcb, void *rrcb_cls);

/* Changes the priority, 0 (first) to 7, of the responses to a request, or of a
   push. Returns SPDY_NO if the stream has ended. */
_MHD_EXTERN int SPDYX_set_priority (struct SPDY_Request *request,
                                    uint8_t priority);

/* Returns SPDY_YES if the client of a session takes pushes, as far as its
   SETTINGS tell. */
_MHD_EXTERN int SPDYX_takes_push (struct SPDY_Session *session);

/* Returns the version of a session: 30 for SPDY/3 and 31 for SPDY/3.1. Returns
   SPDY_NO during a TLS handshake. */
_MHD_EXTERN int SPDYX_get_version (struct SPDY_Session *session);

/* A request has ended without a response. status is
   SPDY_RESPONSE_RESULT_STREAM_CLOSED if the client has reset the stream, and
   SPDY_RESPONSE_RESULT_SESSION_CLOSED if the session has ended. The program frees
   its own data of the request. The library destroys the request when the
   callback returns. Later calls with it return SPDY_INPUT_ERROR or NULL.

   The callback is not called for a request with a response that closes its
   stream, or if an SPDY_ResponseResultCallback reports the end. */
typedef void (*SPDYX_RequestEndedCallback) (void *cls,
                                            struct SPDY_Request *request,
                                            enum SPDY_RESPONSE_RESULT status);

/* Sets the callback for requests of a daemon that end without a response. It
   should be set before the first SPDY_run. Returns SPDY_YES.

   Without it, a request whose stream was reset is valid until its session ends.
   A session closes once it has more than 256 requests of this kind that the
   program has not destroyed. */
_MHD_EXTERN int
SPDYX_set_request_ended_callback (struct SPDY_Daemon *daemon,
                                  SPDYX_RequestEndedCallback recb,
                                  void *recb_cls);

#ifdef __cplusplus
}
#endif

#endif
