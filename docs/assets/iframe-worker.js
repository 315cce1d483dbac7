// Browsers start no workers for pages opened from disk. There the search runs in a hidden frame that looks like a worker.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.waiting = [];
      const begin = () => {
        document.body.append(frame);
        const inside = frame.contentWindow;
        const load = (at) =>
          new Promise((done, failed) => {
            const script = inside.document.createElement("script");
            Object.assign(script, { src: at, onload: done, onerror: failed });
            inside.document.body.append(script);
          });
        inside.importScripts = async (...all) => {
          for (const at of all) await load(new URL(at, url));
        };
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        load(url).then(() => {
          const send = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
          this.waiting.forEach(send);
          this.waiting = { push: send };
        });
      };
      document.body ? begin() : addEventListener("DOMContentLoaded", begin);
    }
    postMessage(data) {
      this.waiting.push(data);
    }
  };
}
